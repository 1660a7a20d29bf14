// Binds a kernel to an op: the specialisation kernel_of<&the_op> has
//
//   template <class T, class Call> static void run(Call& c);      computes one node
//   using elements = element_list<T...>;                          the types T, where they are not
//                                                                 all floating-point types
//
// and, where the kernel needs them, functions that are constants for a node with constant extents:
//
//   template <class T, class Call> static constexpr product_list products(const Call& c);
//                                   matrix products, prepared before the first step: c.product(k)
//   template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c);
//                                   bytes of c.scratch(), for c.threads() threads
//   template <class T, class Call> static void prepare(Call& c);
//                                   called before the first step: makes a table, in c.prepared()
//   template <class T, class Call> static constexpr table_room table(const Call& c);
//                                   bytes of that table, and a key that tells it from others
//
// T is the element type of the operand that types the op. The call gives pointers and local
// extents by the names of operands and outputs that the op lists (op_info::operands):
//
//   c.in(name), c.out(name)     pointers of the type that the name has; null: it is absent
//   c.in_out(name)              pointer of an operand that the op changes
//   c.each_from(name, f)        calls f(pointer) for an operand and all behind it
//   c.has(name)                 true if it is present
//   c.span(name, dims<A, B>)    product of the local extents of dims A ... B-1, counted from the
//                               end when negative (B = 0: the end)
//   c.size(name), c.rows(name)  number of all elements; of all elements but the last dim's
//   c.value_of(name)            the value in the graph
//   c.attr(of_type<A>)          the node's attributes
//   c.described()               the node itself
//   c.lane()                    the lane on which the node's work is started
//   c.product(k)                the node's product k
//   c.device(), c.prepared()        the device; the node's prepared state
//   c.threads()                 number of threads of the host that work for the device
//   c.attention_scratch(s)      bytes of scratch for a fused attention of the device's library
//   c.layer(), c.coordinate()   the node's layer; this rank's coordinate on every axis
//   c.origin(value, i)          global index of this rank's first element of dim i
//   c.comm()                    the communicator of this rank (comm/communicator.hpp)
//   c.scratch()                 memory that no other node uses meanwhile
//   c.declared_scratch()        the scratch that the op's rule has declared
//   c.mirrored(name)            the host's mirror of an operand (op_info::seen)
//   c.host_room()               memory of the host beside that mirror
//   c.constants()               constants of the run
//   c.ranks(), c.sums()         the mesh; the numerics of sums over tokens
//   c.trip()                    for a node of a region: 0, 1, ...
//
// A sum over tokens takes rows_at_once(c.sums(), c.ranks(), value, rows) rows before it takes the
// next ones: all rows, or the rows of one sequence, where gradients must have the same bits for any
// number of sequences in a micro-batch (recipe/numerics.hpp). A span is a constant of the type
// system in the compiled executor and a number in the interpreter; a kernel takes either and gives
// the same bits.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/exec/product_source.hpp>
#include <megacpp/graph/op.hpp>
#include <megacpp/num/extent.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/threads/parallel.hpp>

#include <concepts>

namespace mc {

/// The element types that a kernel is compiled for.
template <class... T> struct element_list {};
using floating = element_list<float, bf16, double>;
using accumulators = element_list<float, double>;
/// Returns the element types of an op's kernel on a device. The device's own kernel has those of
/// the common kernel unless it says others.
template <const op_info* Op, class Device> constexpr auto elements_of() {
  if constexpr (requires { typename kernel_on<Op, Device>::elements; })
    return typename kernel_on<Op, Device>::elements{};
  else if constexpr (requires { typename kernel_of<Op>::elements; })
    return typename kernel_of<Op>::elements{};
  else return floating{};
}
/// The lane type of the device that a kernel is called on.
template <class Call> using lane_of = typename Call::device_type::lane_type;
/// A list of ops, by their addresses.
template <const op_info*... Ops> struct op_list {};

/// Returns the matrix products of node c, by Kernel for elements of type T.
template <class Kernel, class T, class Call> constexpr product_list products_of(const Call& c) {
  product_list products;
  if constexpr (requires { Kernel::template products<T>(c); })
    products = Kernel::template products<T>(c);
  for (int k = 0; k < products.count; ++k) products.all[k].sums = c.sums();
  return products;
}
/// Returns the room that the kernel of a node needs beside its operands; for products, the most
/// that a library may ask for.
template <class Kernel, class T, class Call>
constexpr kernel_room room_of_node(const Call& c, const product_list& products) {
  kernel_room room;
  if constexpr (requires { Kernel::template scratch_bytes<T>(c); })
    room.scratch = Kernel::template scratch_bytes<T>(c);
  for (const product_shape& s : products) {
    const std::int64_t most = Call::device_type::most_workspace(s, c.threads());
    if (room.workspace < most) room.workspace = most;
  }
  return room;
}
template <class Kernel, class T, class Call> constexpr table_room table_of_node(const Call& c) {
  if constexpr (requires { Kernel::template table<T>(c); }) return Kernel::template table<T>(c);
  else return {};
}
/// Prepares the matrix products of a node. All nodes share this one function.
[[gnu::noinline]] inline void prepare_products(product_source& from, const product_list& products,
                                               const void** prepared) {
  for (const product_shape& s : products) *prepared++ = &from.prepare(s);
}
/// Prepares everything that the kernel of a node uses in every step.
template <class Kernel, class T, class Call>
void prepare_kernel(Call& c, const product_list& products) {
  prepare_products(c.device().products(), products, c.prepared().plan.data());
  if constexpr (requires { Kernel::template prepare<T>(c); }) Kernel::template prepare<T>(c);
}

/// on_host: a call on a device of the host, whose memory the host's code computes with by
/// for_pieces. A kernel with such code says so by this concept: other devices have no kernel of its
/// op, or their own (kernel_on).
template <class Call>
concept on_host =
    std::derived_from<std::remove_reference_t<decltype(std::declval<Call&>().lane())>, host_pool>;

} // namespace mc

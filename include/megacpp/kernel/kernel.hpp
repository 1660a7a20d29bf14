// How a kernel is bound to an op: the specialisation kernel_of<&the_op> has
//
//   template <class T, class Call> static void run(Call& c);      compute one node
//   using elements = element_list<T...>;                          for these T, where they are not
//                                                                 all floating-point types
//
// and, where it needs them, functions that are constants of a node whose extents are:
//
//   template <class T, class Call> static constexpr product_list products(const Call& c);
//                                   matrix products, prepared before the first step: c.product(k)
//   template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c);
//                                   of c.scratch(), for c.threads() threads
//   template <class T, class Call> static void prepare(Call& c);
//                                   before the first step: a table, in c.slot()
//   template <class T, class Call> static constexpr table_room table(const Call& c);
//                                   the bytes of that table, and what tells it from others
//
// T is the element type of the operand that types the op. The call gives pointers and local
// extents by the names of operands and outputs that the op lists (op_info::operands):
//
//   c.in(name), c.out(name)     pointers of the type that the name says; null: it is absent
//   c.in_out(name)              of an operand that the op changes
//   c.each_from(name, f)        f(pointer) for an operand and all behind it
//   c.has(name)                 whether it is present
//   c.span(name, dims<A, B>)    product of the local extents of dims A ... B-1, counted from the
//                               end when negative (B = 0: the end)
//   c.size(name), c.rows(name)  all elements; all but the last dim
//   c.value_of(name)            the graph's own description
//   c.attr(of_type<A>)          the node's attributes
//   c.described()               the node itself
//   c.lane()                    the device's lane on which all of it is started
//   c.product(k)                the k-th of its products
//   c.device(), c.slot()        device, prepared state
//   c.threads()                 of the host, that work for the device
//   c.attention_scratch(s)      bytes for a fused attention of the device's library
//   c.layer(), c.coordinate()   layer; of this rank, on every axis
//   c.origin(value, i)          global index of this rank's first element of dim i
//   c.comm()                    this rank and the others (comm/communicator.hpp)
//   c.scratch()                 memory that no other node uses meanwhile
//   c.declared_scratch()        that which the op's rule has declared
//   c.mirrored(name)            the operand that the host sees (op_info::seen)
//   c.host_room()               memory of the host beside it
//   c.constants()               constants of the run
//   c.ranks(), c.sums()         the mesh; how sums over tokens are taken
//   c.trip()                    of a node of a region: 0, 1, ...
//
// A sum over tokens takes rows_at_once(c.sums(), c.ranks(), value, rows) of them before it takes
// the next: all, or those of one sequence, where gradients are to have the same bits however many
// sequences a micro-batch has (recipe/numerics.hpp). A span is a constant of the type system in the
// compiled executor and a number in the interpreter; a kernel takes either and gives the same bits.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/exec/product_source.hpp>
#include <megacpp/graph/op.hpp>
#include <megacpp/num/extent.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/threads/parallel.hpp>

#include <concepts>

namespace mc {

/// Element types for which a kernel is.
template <class... T> struct element_list {};
using floating = element_list<float, bf16, double>;
using accumulators = element_list<float, double>;
/// The element types that the kernel of an op is for on a device: one of the device's own has those
/// of the common one, where it does not say others.
template <const op_info* Op, class Device> constexpr auto elements_of() {
  if constexpr (requires { typename kernel_on<Op, Device>::elements; })
    return typename kernel_on<Op, Device>::elements{};
  else if constexpr (requires { typename kernel_of<Op>::elements; })
    return typename kernel_of<Op>::elements{};
  else return floating{};
}
/// The lanes of the device that a kernel is called on.
template <class Call> using lane_of = typename Call::device_type::lane_type;
/// Ops, as a list of their addresses.
template <const op_info*... Ops> struct op_list {};

/// The products of node c, by Kernel for elements of type T.
template <class Kernel, class T, class Call> constexpr product_list products_of(const Call& c) {
  product_list products;
  if constexpr (requires { Kernel::template products<T>(c); })
    products = Kernel::template products<T>(c);
  for (int k = 0; k < products.count; ++k) products.all[k].sums = c.sums();
  return products;
}
/// The room that the kernel of a node needs beside its operands: of its products, the most that a
/// library may ask for.
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
/// Prepares the products of a node. One function for all nodes.
[[gnu::noinline]] inline void prepare_products(product_source& from, const product_list& products,
                                               const void** prepared) {
  for (const product_shape& s : products) *prepared++ = &from.prepare(s);
}
/// Prepares what the kernel of a node uses in every step.
template <class Kernel, class T, class Call>
void prepare_kernel(Call& c, const product_list& products) {
  prepare_products(c.device().products(), products, c.slot().plan.data());
  if constexpr (requires { Kernel::template prepare<T>(c); }) Kernel::template prepare<T>(c);
}

/// A call on a device of the host, on whose memory code of the host computes in run_slots. A kernel
/// that has such code says so by this concept: other devices have no kernel of its op, or their own
/// (kernel_on).
template <class Call>
concept on_host =
    std::derived_from<std::remove_reference_t<decltype(std::declval<Call&>().lane())>, host_slots>;

} // namespace mc

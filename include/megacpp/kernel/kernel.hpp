// How a kernel is bound to an op: the specialisation kernel_of<&the_op> has
//
//   template <class T, class Call> static void run(Call& c);      compute one node
//   template <class T, class Call> static void prepare(Call& c);  optional: before the first step
//   template <class T, class Call> static std::int64_t scratch_bytes(const Call& c);
//                                   optional: of c.scratch(), on this device and its threads
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
//   c.device(), c.slot()        device, prepared state
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
// sequences a micro-batch has (num/numerics.hpp). A span is a constant of the type system in the
// compiled executor and a number in the interpreter; a kernel takes either and gives the same bits.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/exec/parallel.hpp>
#include <megacpp/graph/op.hpp>
#include <megacpp/num/extent.hpp>

#include <concepts>

namespace mc {

/// A call on a device of the host, on whose memory code of the host computes in run_slots. A kernel
/// that has such code says so by this concept: other devices have no kernel of its op, or their own
/// (kernel_on).
template <class Call>
concept on_host =
    std::derived_from<std::remove_reference_t<decltype(std::declval<Call&>().lane())>, host_slots>;

} // namespace mc

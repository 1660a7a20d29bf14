// The device of a run that does not name one.
#pragma once

namespace mc {

class cpu;
using default_device = cpu; // exec/cpu.hpp

} // namespace mc

// The device of a run that names none.
#pragma once

namespace mc {

class cpu;
using default_device = cpu; // exec/cpu.hpp

} // namespace mc

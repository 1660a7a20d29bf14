// OpenSSL, as a process begins to use it.
#pragma once

#include <openssl/crypto.h>

namespace mc {

/// Keeps OpenSSL from cleaning up when the process exits, since threads that are not waited for may
/// still use it then. It holds if it is called before anything else of OpenSSL.
inline void begin_openssl() {
  static const int done = ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  static_cast<void>(done);
}

} // namespace mc

# Writes the commit of the checkout ROOT to the header TO, if it is another than what that says.
set(commit none)
execute_process(COMMAND git -C ${ROOT} rev-parse --short=12 HEAD OUTPUT_VARIABLE head
                OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
if(failed EQUAL 0)
  set(commit ${head})
  execute_process(COMMAND git -C ${ROOT} status --porcelain OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit "+changes")
  endif()
endif()
file(CONFIGURE OUTPUT ${TO}
     CONTENT "#pragma once\ninline constexpr const char* megacpp_gpu_commit = \"${commit}\";\n")

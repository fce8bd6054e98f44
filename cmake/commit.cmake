# Writes OUTPUT, a header with the commit of SOURCE, when it is another one: cmake -DSOURCE=... -DOUTPUT=... -P commit.cmake
set(commit unknown)
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --abbrev=12 --exclude=* --dirty=-modified
                  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define STRATA_COMMIT \"${commit}\"\n")

# Takes out of an LLVM module what binds it to one compilation: cmake -P neutral.cmake FILE.ll
#   module flags      clang says how division and denormals are compiled; whoever links the module has said so, too, and LLVM
#                     refuses to link two answers
#   target-cpu, ...   LLVM inlines no function into one for another GPU
#   source_filename   names a folder of the machine that built it
file(READ ${CMAKE_ARGV3} module)
string(REGEX REPLACE "\n!llvm.module.flags[^\n]*" "" module "${module}")
string(REGEX REPLACE " \"(target-cpu|target-features|tune-cpu|frame-pointer|min-legal-vector-width|stack-protector-buffer-size)\"=\"[^\"]*\""
  "" module "${module}")
string(REGEX REPLACE "source_filename = \"[^\n]*\"" "source_filename = \"device.cc\"" module "${module}")
file(WRITE ${CMAKE_ARGV3} "${module}")

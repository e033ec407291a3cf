// Opens the libraries that its arguments name, says so after each, and waits for ever if the last
// is "wait".
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  std::puts("started");
  std::fflush(stdout);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "wait") == 0)
      while (true) pause();
    std::printf("%s\n", dlopen(argv[i], RTLD_NOW) != nullptr ? "opened" : dlerror());
    std::fflush(stdout);
  }
  return 7;
}

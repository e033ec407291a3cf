#include <cstdio>

extern "C" const char* which_banner();

int main() {
  std::puts(which_banner());
  return 0;
}

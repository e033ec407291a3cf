#include <gtest/gtest.h>

#include "tests/multi_process/process.h"
#include "tests/namespaces/network.h"

int main(int argc, char** argv) {
  const int role = niccolite::test::play_role(argc, argv);
  if (role >= 0) return role;
  niccolite::test::prepare_for_namespaces();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

#include "tests/cli/command.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace niccolite::testing {
namespace {

std::string contents_of(FILE* file) {
  std::string text;
  std::rewind(file);
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
  std::fclose(file);
  return text;
}

}  // namespace

Outcome run_command(const std::vector<std::string>& arguments,
                    const std::map<std::string, std::string>& environment, int seconds) {
  // Files, not pipes: nobody has to read while the program runs.
  FILE* output = std::tmpfile();
  FILE* errors = std::tmpfile();
  std::vector<char*> pointers;
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(fileno(output), STDOUT_FILENO);
    dup2(fileno(errors), STDERR_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    alarm(static_cast<unsigned>(seconds));  // survives exec
    execvp(pointers[0], pointers.data());
    _exit(127);
  }
  int state = 0;
  waitpid(pid, &state, 0);
  Outcome outcome;
  outcome.status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  outcome.output = contents_of(output);
  outcome.errors = contents_of(errors);
  return outcome;
}

}  // namespace niccolite::testing

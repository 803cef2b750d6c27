// All programs of the tests in one, which runs the one that the first word of its name says, as in
// "serve-2.21.0". TensorFlow's headers take the compiler some 15 s, so they are read once.

#define main Answer
#include "answer.cc"
#undef main
#define main Replay
#include "replay.cc"
#undef main
#define main Serve
#include "serve.cc"
#undef main

int main(int argc, char** argv) {
  const std::string path = argv[0];
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string program = name.substr(0, name.find('-'));
  if (program == "answer") return Answer(argc, argv);
  if (program == "replay") return Replay(argc, argv);
  if (program == "serve") return Serve(argc, argv);
  return Misuse("There is no program " + program + ".");
}

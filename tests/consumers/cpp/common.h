// What the programs that serve SavedModels share.

#pragma once

#include <iostream>
#include <string>

// The wheel lacks the headers that have them.
constexpr char kServeTag[] = "serve";
constexpr char kServingDefault[] = "serving_default";

// Ends a program that TensorFlow refuses something.
template <typename Status>
int Fail(const std::string& step, const Status& status) {
  std::cerr << step << ": " << status.ToString() << std::endl;
  return 1;
}

// Ends a program that is called wrongly.
inline int Misuse(const std::string& message) {
  std::cerr << message << std::endl;
  return 2;
}

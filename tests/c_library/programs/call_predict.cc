// Calls a library by its header for C++ and prints all results; test_languages.py compares them.
#include <array>
#include <cstdio>
#include <vector>

#include "predict.hpp"

namespace {

template <typename Container>
void print(const char *name, const Container &values) {
  std::printf("%s", name);
  for (const auto value : values) std::printf(" %.9g", static_cast<double>(value));
  std::printf("\n");
}

}  // namespace

int main() {
  predict_lib::Library library;
  std::vector<float> x(28);
  for (int i = 0; i < 28; ++i) x[i] = 0.1f * i;
  print("scores", library.call({1, x}).scores);

  std::vector<float> image(predict_lib::count(predict_lib::see::shapes().inputs.image));
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i % 7) - 2;
  const auto results = library.see_call({image});
  print("order", results.order);
  print("pixels", results.pixels);

  // Aligned arrays are used where they are.
  alignas(64) std::array<float, 4> a = {1, 2, 3, 4};
  alignas(64) std::array<float, 4> b = {5, 6, 7, 8};
  if (library.mix_run({a, b}, {a, b}) != PREDICT_OK) return 1;
  print("a", a);
  print("b", b);

  try {
    library.call({2, x});
  } catch (const predict_lib::Error &error) {
    std::printf("%d %s\n", error.status(), error.what());
  }
  predict_lib::Library moved = std::move(library);
  std::array<float, predict_lib::count(predict_lib::shapes({2}).outputs.scores)> scores;
  x.resize(56);
  if (moved.run({2, x}, {scores}) != PREDICT_OK) std::printf("%s\n", moved.message());
}

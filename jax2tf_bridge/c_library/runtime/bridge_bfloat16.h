// Conversions to bfloat16 that compiled programs call, and GCC's libraries have since GCC 13 only.
#ifndef JAX2TF_BRIDGE_BFLOAT16_H_
#define JAX2TF_BRIDGE_BFLOAT16_H_

#if defined(__x86_64__) || defined(__aarch64__)

#include <cstdint>
#include <cstring>

// Weak, because a program may link several libraries, and a compiler's own definitions.
#define JAX2TF_BRIDGE_WEAK extern "C" __attribute__((weak, visibility("hidden")))

namespace jax2tf_bridge {

template <typename To, typename From>
To CastBits(From from) {
  static_assert(sizeof(To) == sizeof(From), "both have the same bits");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

}  // namespace jax2tf_bridge

JAX2TF_BRIDGE_WEAK float __truncsfbf2(float number);
JAX2TF_BRIDGE_WEAK float __truncdfbf2(double number);

// Rounds to the nearest bfloat16, of two equally near ones to the even one. Callers read the low 16
// bits of the register of floats in which the result is returned; older compilers have no type of it.
float __truncsfbf2(float number) {
  uint32_t bits = jax2tf_bridge::CastBits<uint32_t>(number);
  if (number != number) {
    bits = (bits >> 16) | 0x40;  // a quiet NaN
  } else {
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
  return jax2tf_bridge::CastBits<float>(bits);
}

// The float between is rounded to odd, so that the second rounding is right.
float __truncdfbf2(double number) {
  float near = static_cast<float>(number);
  const double error = number - near;
  if (error != 0 && error == error) {
    uint32_t bits = jax2tf_bridge::CastBits<uint32_t>(near);
    if ((error < 0) == (number > 0)) --bits;  // towards zero
    near = jax2tf_bridge::CastBits<float>(bits | 1);
  }
  return __truncsfbf2(near);
}

#endif  // defined(__x86_64__) || defined(__aarch64__)
#endif  // JAX2TF_BRIDGE_BFLOAT16_H_

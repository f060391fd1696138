// Optimizer steps: several outputs of each element, of any types, by a rule with numbers of its own.
//
// elementwise.cuh has the ladder and the tile; here results go to as many arrays as the rule has,
// each in vectors of as many elements as fill kBytes of the widest type. A rule is a struct with
//
//   template <int kOutputs> __device__ void apply(float (&out)[kOutputs], float in...) const
//
// It is made of numbers that are passed at run time: a learning rate changes from step to step. A
// kernel is then one call: update<…>(Updated<Rule, types…>(rule, arrays…), n, inputs…).
#pragma once

#include "elementwise.cuh"
#include "math.cuh"

template <typename... T>
struct Arrays {
  __device__ Arrays from(long long) const { return {}; }
  template <int kWidth>
  __device__ bool is_aligned() const {
    return true;
  }
  template <Reuse kStores, int kRow, int kAll, int kWidth>
  __device__ void store(int, const float (&)[kAll][kWidth]) const {}
};

template <typename T, typename... Rest>
struct Arrays<T, Rest...> {
  T* first;
  Arrays<Rest...> rest;

  __device__ Arrays(T* first, const Arrays<Rest...>& rest) : first(first), rest(rest) {}
  __device__ explicit Arrays(T* first, Rest*... others) : first(first), rest(others...) {}

  __device__ Arrays from(long long element) const { return {first + element, rest.from(element)}; }
  template <int kWidth>
  __device__ bool is_aligned() const {
    return aligned<kWidth * sizeof(T)>(first) && rest.template is_aligned<kWidth>();
  }
  template <Reuse kStores, int kRow, int kAll, int kWidth>
  __device__ void store(int i, const float (&values)[kAll][kWidth]) const {
    ::store<kStores>(first + i, from_floats<T>(values[kRow]));
    rest.template store<kStores, kRow + 1>(i, values);
  }
};

// What elementwise_tile asks of its outputs, the first of which is of the widest type.
template <class Rule, typename T, typename... Rest>
struct Updated {
  static constexpr int kOutputs = 1 + sizeof...(Rest);
  Rule rule;
  Arrays<T, Rest...> arrays;

  __device__ Updated(const Rule& rule, const Arrays<T, Rest...>& arrays)
      : rule(rule), arrays(arrays) {}
  __device__ Updated(const Rule& rule, T* y, Rest*... others) : rule(rule), arrays(y, others...) {}

  __device__ Updated from(long long element) const { return {rule, arrays.from(element)}; }
  template <int kBytes>
  __device__ bool is_aligned() const {
    return arrays.template is_aligned<kBytes / sizeof(T)>();
  }
  template <class, Reuse kStores, int kWidth, typename... Vectors>
  __device__ void store(int i, const Vectors&... in) const {
    float out[kOutputs][kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      float element[kOutputs];
      rule.apply(element, to_float(in[e])...);
#pragma unroll
      for (int k = 0; k < kOutputs; ++k) out[k][e] = element[k];
    }
    arrays.template store<kStores, 0>(i, out);
  }
};

template <int kBytes, int kLoads, Reuse kStores, class Rule, typename T, typename... Rest,
          typename... Inputs>
__device__ void update(const Updated<Rule, T, Rest...>& outputs, long long n,
                       const Inputs*... inputs) {
  elementwise_tile<Rule, kBytes, kLoads, kStores, T>(outputs, n, inputs...);
}

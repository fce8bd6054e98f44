// Concatenates lists in order, such as several backends'.
#pragma once

#include <iterator>
#include <vector>

namespace strata {

template <class T, class... More>
std::vector<T> join(std::vector<T> first, More... more) {
  (first.insert(first.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end())), ...);
  return first;
}

}  // namespace strata

// Hopper without a GPU: the CTAs for few long rows of logits, and the notes for their selection in addition to the logits.
#include "backends/cuda/indexer/sm90/notes.h"

#include <gtest/gtest.h>

namespace strata::cuda::sm90 {
namespace {

constexpr int kSms[] = {132, 114, 78};
constexpr int64_t kColumns[] = {1, 8192, 8193, 16384, 16385, 32768, 40000, 65536, 131072, 131073, 262144, 524288, 1048576};
constexpr int64_t kChosen[] = {1, 16, 512, 1024, 2048, 5000};

TEST(IndexerNotes, BlocksOfAllRowsRunAtATime) {
  for (const int sms : kSms) {
    for (int64_t tokens = 1; tokens <= sms; ++tokens) {
      int before = 1;
      for (const int64_t columns : kColumns) {
        const int blocks = row_blocks(tokens, columns, sms);
        EXPECT_LE(blocks * tokens, sms);
        EXPECT_LE(blocks, kMaxRowBlocks);
        EXPECT_EQ(blocks & (blocks - 1), 0) << blocks;
        EXPECT_GE(blocks, before) << tokens << " tokens of " << columns;
        if (tokens > 1) {
          EXPECT_LE(blocks, row_blocks(tokens - 1, columns, sms));
        }
        before = blocks;
      }
    }
  }
}

// As the list of indexer_topk has them.
Notes notes_of(int64_t tokens, int64_t columns, int64_t k, int sms) {
  for (const Notes notes : {Notes::candidates, Notes::maxima}) {
    if (serve(notes, tokens, columns, k, sms)) return notes;
  }
  return Notes::none;
}

TEST(IndexerNotes, MaximaAreOfRowsThatRegistersMayNotHold) {
  for (const int sms : kSms) {
    for (const int64_t tokens : {1, 2, 9, 32, 33, 66, 67, 114, 132, 133}) {
      for (const int64_t columns : kColumns) {
        for (const int64_t k : kChosen) {
          const Notes notes = notes_of(tokens, columns, k, sms);
          const bool held = columns <= row_blocks(tokens, columns, sms) * kHeldByBlock;
          if (notes == Notes::maxima) {
            EXPECT_TRUE(tokens <= sms && tokens <= kFewTokens && !held);
            EXPECT_GE(columns, kMaximaRows * (kGroupsOfEach * k - 1)) << "no row of so few groups is found by them";
          } else if (notes == Notes::none && tokens <= std::min<int64_t>(sms, kFewTokens)) {
            EXPECT_TRUE(held || columns <= kMaximaRows * kGroupsOfEach * k) << tokens << " tokens of " << columns << ", " << k;
          } else if (notes == Notes::candidates) {
            EXPECT_EQ(tokens, 1);
          }
        }
      }
    }
  }
}

// The workspace for notes is sized by the largest call: it is enough for every smaller one.
TEST(IndexerNotes, RoomIsEnoughAndDoesNotShrink) {
  for (const int sms : kSms) {
    for (const int64_t k : kChosen) {
      int64_t before = 0;
      for (const int64_t columns : kColumns) {
        const int64_t floats = note_floats(columns, k, sms);
        EXPECT_EQ(floats % 4, 0);
        EXPECT_GE(floats, before) << columns << " rather than fewer, " << k;
        before = floats;
        for (const int64_t tokens : {1, 2, 32, 100}) {
          const Notes notes = notes_of(tokens, columns, k, sms);
          const int64_t maxima = (columns + kMaximaRows - 1) / kMaximaRows, candidates = candidate_blocks(sms) * (2 * kCandidateSlots + 1);
          EXPECT_GE(floats, notes == Notes::maxima ? maxima : notes == Notes::candidates ? candidates : 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata::cuda::sm90

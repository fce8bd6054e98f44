# What the tests of the command line share. Expects $work, a directory of the test's own.

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# expect CODE COMMAND...: the exit code, with what was written in $work/stdout and $work/stderr.
expect() {
  local wanted=$1 code=0
  shift
  "$@" > "$work/stdout" 2> "$work/stderr" || code=$?
  [ "$code" = "$wanted" ] || fail "$* returned $code, expected $wanted: $(tail -3 "$work/stderr")"
}

# refused EXPECTED_WORDS COMMAND...: exit code 2 and one line on stderr that has the words.
refused() {
  local words=$1
  shift
  expect 2 "$@"
  [ "$(wc -l < "$work/stderr")" = 1 ] || fail "$* wrote $(wc -l < "$work/stderr") lines to stderr: $(cat "$work/stderr")"
  grep -q -- "$words" "$work/stderr" || fail "'$words' is not in: $(cat "$work/stderr")"
}

# has FILE WORDS
has() {
  grep -q -- "$2" "$1" || fail "'$2' is not in $1: $(head -c 600 "$1")"
}

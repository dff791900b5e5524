// Package expect has the two checks that nearly every test makes.
package expect

import "fmt"

// T is a test, such as a *testing.T or a *rapid.T.
type T interface {
	Helper()
	Fatal(args ...any)
	Errorf(format string, args ...any)
}

// NoError ends the test if err is not nil.
func NoError(t T, err error) {
	if err != nil { // Helper is slow: benchmarks call it only when they fail
		t.Helper()
		t.Fatal(err)
	}
}

// Equal fails the test, which goes on, if got differs from want. The format and its arguments name what was compared.
func Equal[V comparable](t T, got, want V, format string, args ...any) {
	if got == want {
		return
	}

	t.Helper()
	what := fmt.Sprintf(format, args...)
	if _, text := any(got).(string); text {
		t.Errorf("%s: got %q, want %q", what, any(got), any(want))
		return
	}
	t.Errorf("%s: got %v, want %v", what, got, want)
}

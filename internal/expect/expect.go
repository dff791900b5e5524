// Package expect has the checks that nearly every test makes.
package expect

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

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

// Equal fails the test, which goes on, if got differs from want. The format and
// its arguments name what was compared.
func Equal[V comparable](t T, got, want V, format string, args ...any) {
	if got != want {
		t.Helper()
		differ(t, got, want, format, args...)
	}
}

// EqualSlices is Equal for slices. An empty one equals nil.
func EqualSlices[V comparable](t T, got, want []V, format string, args ...any) {
	if !slices.Equal(got, want) {
		t.Helper()
		differ(t, got, want, format, args...)
	}
}

// DeepEqual is Equal by reflect.DeepEqual.
func DeepEqual(t T, got, want any, format string, args ...any) {
	if !reflect.DeepEqual(got, want) {
		t.Helper()
		differ(t, got, want, format, args...)
	}
}

// ErrorIs is Equal by errors.Is.
func ErrorIs(t T, got, want error, format string, args ...any) {
	if !errors.Is(got, want) {
		t.Helper()
		differ(t, got, want, format, args...)
	}
}

// differ fails the test. Texts are quoted, so that spaces and control characters can be seen.
func differ(t T, got, want any, format string, args ...any) {
	t.Helper()
	verb := "%+v"
	switch got.(type) {
	case string, []string:
		verb = "%q"
	}
	t.Errorf("%s: got "+verb+", want "+verb, fmt.Sprintf(format, args...), got, want)
}

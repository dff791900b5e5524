package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
)

func TestMedian(t *testing.T) {
	tests := []struct {
		have series
		want float64
	}{
		{series{3}, 3},
		{series{9, 1, 5}, 5},
		{series{4, 1, 2, 3}, 2.5},
	}
	for _, tt := range tests {
		before := slices.Clone(tt.have)
		if have := tt.have.median(); have != tt.want {
			t.Errorf("median of %v: have %v, want %v", tt.have, have, tt.want)
		}
		if !slices.Equal(tt.have, before) {
			t.Errorf("%v was sorted in place", before)
		}
	}
	if have := (series{}).median(); !math.IsNaN(have) {
		t.Errorf("of nothing: have %v", have)
	}
}

func TestRatioOfMediansAndSpreadOfRounds(t *testing.T) {
	have := over(series{80, 90, 100}, series{100, 100, 200})
	if want := (ratio{Median: 0.9, Min: 0.5, Max: 0.9}); have != want {
		t.Errorf("have %+v, want %+v", have, want)
	}
	if have, want := have.times(10), (ratio{9, 5, 9}); have != want {
		t.Errorf("times 10: have %+v, want %+v", have, want)
	}
	if have := over(nil, series{1}); !math.IsNaN(have.Median) || !math.IsNaN(have.Min) {
		t.Errorf("of nothing: have %+v", have)
	}
}

func TestTurnsAreInAnotherOrderEachRound(t *testing.T) {
	var order string
	var all []contender
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, contender{name, func(context.Context) error { order += name; return nil }})
	}
	quiet := func(string) {}
	if err := takeTurns(t.Context(), 4, all, quiet); err != nil || order != "cbabcaacbacb" {
		t.Errorf("have %s, %v", order, err)
	}
	broken := errors.New("broken")
	all[1].run = func(context.Context) error { return broken }
	if err := takeTurns(t.Context(), 4, all, quiet); !errors.Is(err, broken) {
		t.Errorf("have %v", err)
	}
}

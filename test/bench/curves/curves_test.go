package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The CSV file alone is enough to draw a plot again.
func TestDraw(t *testing.T) {
	o := &options{out: t.TempDir()}
	want := []point{
		pointOf("a, with a comma", 1000, []float64{3, 1, 2}), pointOf("a, with a comma", 1e7, []float64{4, 2}),
		pointOf("b", 1000, []float64{0.5}),
	}
	if want[0].y != 2 || want[0].least != 1 || want[0].most != 3 || want[1].y != 3 {
		t.Fatalf("have %+v", want)
	}
	for _, f := range figures {
		if err := writePoints(filepath.Join(o.out, f.name+".csv"), want); err != nil {
			t.Fatal(err)
		}
	}
	have, err := readPoints(filepath.Join(o.out, "keys.csv"))
	if err != nil || !slices.Equal(have, want) {
		t.Errorf("have %+v, %v", have, err)
	}
	if err := drawAll(o); err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		text, err := os.ReadFile(filepath.Join(o.out, f.name+".svg"))
		if err != nil || !strings.Contains(string(text), "<svg") ||
			!strings.Contains(string(text), "a, with a comma") ||
			!strings.Contains(string(text), f.title) {
			t.Errorf("%s: have %d bytes, %v", f.name, len(text), err)
		}
	}
}

func TestBrokenFile(t *testing.T) {
	for _, text := range []string{"", "line,x\n", "line,x,median,least,most\n",
		"line,x,median,least,most\na,1,two,3,4\n"} {
		path := filepath.Join(t.TempDir(), "x.csv")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if points, err := readPoints(path); err == nil {
			t.Errorf("%q: have %v", text, points)
		}
	}
}

func TestAmount(t *testing.T) {
	for v, want := range map[float64]string{0.2: "0.2", 1: "1", 50: "50", 1000: "1 k", 250_000: "250 k", 1e7: "10 M"} {
		if have := amount(v); have != want {
			t.Errorf("%v: have %q, want %q", v, have, want)
		}
	}
}

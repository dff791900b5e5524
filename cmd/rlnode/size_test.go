package main

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]size{"0": 0, "1048576": 1 << 20, "512KiB": 512 << 10,
		"160MiB": 160 << 20, "2 GiB": 2 << 30} {
		var got size
		if err := got.parse(text); err != nil || got != want {
			t.Errorf("%q: have %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "160MB", "160mib", "9223372036854775807KiB", "1MiBMiB"} {
		var got size
		if err := got.parse(text); err == nil || !strings.Contains(err.Error(), "160MiB") {
			t.Errorf("%q: have %d, %v", text, got, err)
		}
	}
}

// The room for reservations is a size, by flag, environment and file.
func TestReservationsSetting(t *testing.T) {
	clearEnv(t)
	got, err := parseServe()
	if err != nil || got.config().ReservationBytes != counters.DefaultReservationBytes {
		t.Errorf("by default: have %d, %v", got.Reservations, err)
	}
	got, err = parseServe("--reservations", "1GiB")
	if err != nil || got.config().ReservationBytes != 1<<30 {
		t.Errorf("by flag: have %d, %v", got.Reservations, err)
	}
	got, err = parseServe("--config", file(t, "config.yaml", "reservations: 4MiB\n"))
	if err != nil || got.config().ReservationBytes != 4<<20 {
		t.Errorf("by file: have %d, %v", got.Reservations, err)
	}
	_, err = parseServe("--reservations", "-1MiB")
	if err == nil || !strings.Contains(err.Error(), "expected size value") {
		t.Errorf("below 0: have %v", err)
	}
	_, err = parseServe("--reservations", "much")
	if err == nil || !strings.Contains(err.Error(), "--reservations") {
		t.Errorf("have %v", err)
	}
	got, err = parseServe("--reservations", "1KiB", "--name", "n", "--data-dir", "d")
	expect.NoError(t, err)
	err = got.complete()
	if err == nil || !strings.Contains(err.Error(), "--reservations: 1024 is not in") {
		t.Errorf("too little: have %v", err)
	}
}

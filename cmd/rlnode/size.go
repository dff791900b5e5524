package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// size is a number of bytes, written as such or with a unit: 160MiB.
type size int64

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// Decode reads a flag's value.
func (s *size) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("size", &text); err != nil {
		return err
	}
	return s.parse(text)
}

// parse reads a size.
func (s *size) parse(text string) error {
	number, unit := text, int64(1)
	for _, u := range sizeUnits {
		rest, found := strings.CutSuffix(number, u.suffix)
		if found {
			number, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}

	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return fmt.Errorf("%.40q is not a size, such as 160MiB; the units are KiB, MiB and GiB, and without one it is bytes", text)
	}
	*s = size(n * unit)
	return nil
}

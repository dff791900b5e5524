package main

import (
	"os"
)

// isTerminal reports whether w is a terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // also a character device, but not a terminal
	return err != nil || !os.SameFile(info, null)
}

// palette colours text for a terminal. The zero palette leaves text unchanged.
type palette bool

// colours returns the palette for w. Only a terminal with colours gets them,
// unless NO_COLOR is set.
func colours(w any) palette {
	return palette(os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w))
}

// The colours that paint takes.
const red, green, yellow = "31", "32", "33"

func (p palette) paint(colour, text string) string {
	if !p {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// verdict says whether a check or a limit allows.
func (p palette) verdict(allowed bool) string {
	if allowed {
		return p.paint(green, "allowed")
	}
	return p.paint(red, "refused")
}

package document

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestFolding(t *testing.T) {
	login := Folding{trim: true, lower: true, nfc: true}
	path := Folding{path: true}
	for _, tt := range []struct {
		fold       Folding
		text, want string
	}{
		{Folding{}, " Ann ", " Ann "},
		{login, "ann@example.com", "ann@example.com"},
		{login, "  ANN@Example.com\t", "ann@example.com"},
		{login, "Jose\u0301", "jos\u00e9"},
		{login, "JOS\u00c9\u00a0", "jos\u00e9"},
		{login, "\u212a", "k"},
		{login, "\xff\xfeA", "\xff\xfea"},
		{Folding{lower: true}, "Jose\u0301", "jose\u0301"},
		{path, "/a/b", "/a/b"},
		{path, "/", "/"},
		{path, "", ""},
		{path, "//", "/"},
		{path, "/a//b/", "/a/b"},
		{path, "/a/./b/../c", "/a/c"},
		{path, "/../../a", "/a"},
		{path, "/a/..", "/"},
		{path, "/%61%2Fb", "/a/b"},
		{path, "/%2561", "/a"},
		{path, "/%2%35%36%31", "/a"},
		{path, "/%zz%", "/%zz%"},
		{path, "/login;jsessionid=1/x;y", "/login/x"},
		{path, "/login%3Bv=1", "/login"},
		{path, "/a/%2e%2E/b", "/b"},
		{path, "a/../b/", "b"},
		{path, "..", ""},
		{path, "/Login", "/Login"},
		{Folding{path: true, lower: true}, "/LOGIN/%41", "/login/a"},
		{Folding{path: true, trim: true}, " /a/ .. /b%20/ ", "/b"},
		{Folding{path: true, nfc: true}, "/a\u037eb", "/a"}, // the Greek question mark is a semicolon
	} {
		got, _ := tt.fold.Fold(nil, tt.text)
		expect.Equal(t, got, tt.want, "%+v of %q", tt.fold, tt.text)
	}
}

// What is folded stays the same if it is folded again, and what a buffer held before stays in it.
func TestFoldingTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Folding{
			trim: rapid.Bool().Draw(t, "trim"), lower: rapid.Bool().Draw(t, "lower"),
			nfc: rapid.Bool().Draw(t, "nfc"), path: rapid.Bool().Draw(t, "path"),
		}
		part := rapid.OneOf(
			rapid.SampledFrom([]string{"/", "//", ".", "..", ";", "%", "%2", "25", "%2f", "%2E",
				" ", "\u00a0", "A", "\u0301", "\u212b", "\u0130", "\u03f4", "\xff", "%3B", "%C3",
				"%A9"}),
			rapid.StringN(0, 4, -1),
		)
		text := strings.Join(rapid.SliceOfN(part, 0, 12).Draw(t, "parts"), "")

		once, b := f.Fold([]byte("kept"), text)
		if string(b[:4]) != "kept" {
			t.Fatalf("fold changed what the buffer held: %q", b)
		}
		once = strings.Clone(once)
		if twice, _ := f.Fold(nil, once); twice != once {
			t.Fatalf("%+v of %q: got %q, and of that %q", f, text, once, twice)
		}
	})
}

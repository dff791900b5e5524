package api

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// manyTokens returns a set of n tokens, and an Authorization header with one of them.
func manyTokens(n int) (*tokenSet, string) {
	s, text := tokensFromSettings("", ""), ""
	for i := range n {
		text = fmt.Sprintf("rlt_%043d", i)
		s.add(&Token{Name: fmt.Sprint("t", i), Scopes: ScopeCheck, hash: sha256.Sum256([]byte(text))})
	}
	return s, "Bearer " + text
}

// BenchmarkToken measures looking up a token in a set of one, and of ten thousand.
func BenchmarkToken(b *testing.B) {
	for _, n := range []int{1, maxTokens} {
		set, header := manyTokens(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if set.find(header) == nil {
					b.Fatal("not found")
				}
			}
		})
	}
}

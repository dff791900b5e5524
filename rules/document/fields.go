package document

import (
	"time"

	"github.com/rlnode/rlnode/internal/yaml"
)

// field is a key allowed in some mapping of the document. Its value is part of a T.
type field[T any] struct {
	key   string
	read  func(d *decoder, n *yaml.Node, into *T)
	write func(from *T) *yaml.Node // returns nil to leave the key out
}

// fields are the keys of a mapping, in the order in which they are written.
type fields[T any] struct {
	list []field[T]
	keys []string
}

func fieldsOf[T any](list ...field[T]) *fields[T] {
	f := &fields[T]{list: list}
	for i := range list {
		f.keys = append(f.keys, list[i].key)
	}
	return f
}

// read reads a mapping and reports whether n is one. Unless where is nil, read
// records the positions of the keys in it.
func (f *fields[T]) read(d *decoder, n *yaml.Node, into *T, where positions) bool {
	return d.eachField(n, f.keys, func(i int, key, v *yaml.Node) {
		if where != nil {
			where[key.Text] = key.Pos
		}
		f.list[i].read(d, v, into)
	})
}

func (f *fields[T]) node(from *T) *yaml.Node {
	n := yaml.NewMap()
	for i := range f.list {
		n.Set(f.list[i].key, f.list[i].write(from))
	}
	return n
}

// codec reads and writes values of one kind.
type codec[V any] struct {
	read  func(d *decoder, n *yaml.Node) V
	write func(V) *yaml.Node // returns nil to leave the value out
}

// of returns a field whose value is a variable in a T; at returns its address.
func of[T, V any](key string, c codec[V], at func(*T) *V) field[T] {
	return field[T]{
		key:   key,
		read:  func(d *decoder, n *yaml.Node, into *T) { *at(into) = c.read(d, n) },
		write: func(from *T) *yaml.Node { return c.write(*at(from)) },
	}
}

// unlessZero makes write leave out zero values.
func unlessZero[V comparable](write func(V) *yaml.Node) func(V) *yaml.Node {
	return func(v V) *yaml.Node {
		var zero V
		if v == zero {
			return nil
		}
		return write(v)
	}
}

// unlessEmpty makes write leave out empty collections.
func unlessEmpty[V any](write func(V) *yaml.Node) func(V) *yaml.Node {
	return func(v V) *yaml.Node { return nilIfEmpty(write(v)) }
}

var (
	nameCodec    = codec[string]{(*decoder).name, text}
	booleanCodec = codec[bool]{(*decoder).boolean, boolean}
	flagCodec    = codec[bool]{(*decoder).boolean, unlessZero(boolean)}
)

func wordCodec(words ...string) codec[string] {
	return codec[string]{func(d *decoder, n *yaml.Node) string { return d.word(n, words...) }, text}
}

func spanCodec(low, high time.Duration) codec[Span] {
	return codec[Span]{
		func(d *decoder, n *yaml.Node) Span { return d.span(n, low, high) },
		func(s Span) *yaml.Node { return text(s.Text) },
	}
}

func integerCodec[N int | int64](low, high N) codec[N] {
	return codec[N]{
		func(d *decoder, n *yaml.Node) N { return N(d.integer(n, int64(low), int64(high))) },
		unlessZero(integer[N]),
	}
}

func fractionCodec(low, high float64) codec[float64] {
	return codec[float64]{
		func(d *decoder, n *yaml.Node) float64 { return d.fraction(n, low, high) },
		unlessZero(fraction),
	}
}

// positiveCodec reads and writes numbers above 0 and up to high. what names the number in messages.
func positiveCodec(high float64, what string) codec[float64] {
	return codec[float64]{
		func(d *decoder, n *yaml.Node) float64 {
			mistakes := len(d.errs)
			v := d.fraction(n, 0, high)
			if v == 0 && len(d.errs) == mistakes {
				d.fail(n, "%s must be above 0", what)
			}
			return v
		},
		unlessZero(fraction),
	}
}

// mapOf reads a mapping whose keys the user chooses.
func mapOf[V any](read func(d *decoder, key, n *yaml.Node) V) func(d *decoder, n *yaml.Node) []V {
	return func(d *decoder, n *yaml.Node) (list []V) {
		d.eachEntry(n, func(key, v *yaml.Node) { list = append(list, read(d, key, v)) })
		return list
	}
}

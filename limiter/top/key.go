package top

import "github.com/rlnode/rlnode/rules"

// KeySource knows the keys of the subjects that a call was about.
type KeySource interface {
	// CopySubjectKey sets key to the key of h's subject.
	CopySubjectKey(key *Key, h *rules.Hit)
}

// Key is a subject's key in a list. The next subject in its place takes over
// the memory: a list that very many subjects pass through must not allocate for
// each.
type Key struct {
	text  []byte // the values, one after another
	ends  []int  // of the values
	known bool   // false if the call did not say the key
}

// Set copies values into key. They are nil if the call did not say the key.
func (key *Key) Set(values []string) {
	key.known = values != nil
	key.text = key.text[:0]
	key.ends = key.ends[:0]
	for _, value := range values {
		key.text = append(key.text, value...)
		key.ends = append(key.ends, len(key.text))
	}
}

// values returns a copy of the key.
func (key *Key) values() []string {
	if !key.known {
		return nil
	}

	values := make([]string, len(key.ends))
	from := 0
	for i, to := range key.ends {
		values[i] = string(key.text[from:to])
		from = to
	}

	return values
}

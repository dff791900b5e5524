package rules

// maxLinearAttributes is the number of names up to which find compares one by one; above it, find uses the map.
const maxLinearAttributes = 8

// attributes numbers the attributes that any part of a set uses.
type attributes struct {
	named   []namedAttribute // by number
	numbers map[string]int   // by name
}

type namedAttribute struct {
	name    string
	address bool // its values are addresses
}

// add returns the number of an attribute, and assigns one if it has none.
func (a *attributes) add(name string) int {
	n, ok := a.numbers[name]
	if !ok {
		n = len(a.named)
		a.numbers[name] = n
		a.named = append(a.named, namedAttribute{name, holdsAddresses(name)})
	}
	return n
}

// find returns the number of an attribute, or -1.
func (a *attributes) find(name string) int {
	if len(a.named) <= maxLinearAttributes {
		for i := range a.named {
			if a.named[i].name == name {
				return i
			}
		}
		return -1
	}
	if n, ok := a.numbers[name]; ok {
		return n
	}
	return -1
}

package rules

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/rlnode/rlnode/rules/entries"
)

// listKey is what an entry of a list is filed under.
type listKey struct {
	attribute int32
	class     listClass
	bits      uint8 // of a network
	isIPv4    bool  // of a network
	text      string
	net       [2]uint64 // the words of a network's address
}

// Hash implements entries.Key.
func (k listKey) Hash() uint64 {
	kind := uint64(k.attribute)<<16 | uint64(k.class)<<8 | uint64(k.bits)
	if k.class == netClass {
		return entries.HashWords(k.net[0]^kind, k.net[1])
	}
	return entries.HashWords(entries.HashText(k.text), kind)
}

type listClass uint8

const (
	textClass listClass = iota
	netClass
	prefixClass
	suffixClass
	presentClass
)

// presenceKey returns the key of the items that only need an attribute to be
// present.
func presenceKey(attribute int) listKey {
	return listKey{attribute: int32(attribute), class: presentClass}
}

// netKey returns the key of a network, given its first address.
func netKey(attribute int, a netip.Addr, bits int) listKey {
	return listKey{attribute: int32(attribute), class: netClass, bits: uint8(bits), isIPv4: a.Is4(), net: wordsOf(a)}
}

// wordsOf returns the bytes of an address as two numbers.
func wordsOf(a netip.Addr) [2]uint64 {
	b := a.As16()
	return [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// The classes of keys, from the most to the least selective.
const (
	byValue = iota
	byGlob
	byPresence
)

// selectivity returns the least selective class among keys, and the most that
// count returns for one of them.
func selectivity(keys []listKey, count func(listKey) int) (class, most int) {
	for _, key := range keys {
		classOf := [...]int{textClass: byValue, netClass: byValue, prefixClass: byGlob,
			suffixClass: byGlob, presentClass: byPresence}
		class = max(class, classOf[key.class])
		most = max(most, count(key))
	}
	return class, most
}

// keysOf returns the keys for filing an entry by its condition c. An entry with
// several conditions is filed by one of them.
func keysOf(c *condition) (list []listKey) {
	n := int32(c.attribute)
	for _, text := range c.texts { // including CIDRs
		list = append(list, listKey{attribute: n, text: text})
	}

	for _, a := range c.addresses {
		list = append(list, netKey(c.attribute, a, a.BitLen()))
	}

	for _, p := range c.nets {
		list = append(list, netKey(c.attribute, p.Addr(), p.Bits()))
	}

	for i := range c.globs {
		g := &c.globs[i]
		switch {
		case g.prefix != "":
			list = append(list, listKey{attribute: n, class: prefixClass, text: strings.Clone(g.prefix)})
		case g.suffix != "":
			list = append(list, listKey{attribute: n, class: suffixClass, text: strings.Clone(g.suffix)})
		default:
			return []listKey{presenceKey(c.attribute)}
		}
	}

	return list
}

package document

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/internal/yaml"
)

// Bounds of a check, and so of a key, a match or a profile.
const (
	MaxAttributes = 32   // attributes, and values of a key
	MaxValueBytes = 1024 // of an attribute's value
)

// MaxShownBytes bounds a value of a key as rules count and show it, in bytes:
// folding may make a value longer, and the name of an alternative may stand
// before it.
const MaxShownBytes = maxNameBytes + len("=") + 5*MaxValueBytes

// AttributeSpec declares an attribute, and says which spellings of its values are the same.
type AttributeSpec struct {
	Name string
	Fold []string // of foldWords
	Path bool     // values are paths

	Folding Folding // what Fold and Path say
	pos     yaml.Pos
}

// FoldValue folds a value. a may be nil.
func (a *AttributeSpec) FoldValue(value string) string {
	if a == nil {
		return value
	}
	value, _ = a.Folding.Fold(nil, value)
	return value
}

// FoldPattern folds a glob by lower and nfc only. The other foldings need a
// whole value, and the text around a * is only a part of one. a may be nil.
func (a *AttributeSpec) FoldPattern(pattern string) string {
	if a == nil {
		return pattern
	}
	pattern, _ = Folding{lower: a.Folding.lower, nfc: a.Folding.nfc}.Fold(nil, pattern)
	return pattern
}

// canonicalValue returns the spelling that stands for all spellings of a value.
func canonicalValue(declared map[string]*AttributeSpec, attribute, value string) string {
	return canonicalAddress(attribute, declared[attribute].FoldValue(value))
}

// HoldsAddresses reports whether an attribute's values are addresses: ip and *_ip.
func HoldsAddresses(attribute string) bool {
	return attribute == "ip" || strings.HasSuffix(attribute, "_ip")
}

// IsAddress reports whether s is an address in a notation that rlnode accepts
// as the value of an address attribute.
func IsAddress(s string) bool {
	_, ok := ipaddr.Parse(s)
	return ok
}

// canonicalAddress returns value in canonical notation if attribute holds
// addresses and value is one, and otherwise value unchanged.
func canonicalAddress(attribute, value string) string {
	if HoldsAddresses(attribute) {
		if a, ok := ipaddr.Parse(value); ok {
			return a.String()
		}
	}
	return value
}

// addressMistake returns what is wrong with a value that looks like an address
// but isn't valid, or "".
func addressMistake(attribute, value string, cidr bool) string {
	if p, ok := ipaddr.ParsePrefix(value); ok && cidr {
		if p != p.Masked() && HoldsAddresses(attribute) {
			return fmt.Sprintf("%s has bits set behind its prefix; did you mean %s?", value, p.Masked())
		}
		return ""
	}

	if !HoldsAddresses(attribute) || !looksLikeAddress(value) {
		return ""
	}
	if _, ok := ipaddr.Parse(value); ok {
		return ""
	}
	if cidr {
		return fmt.Sprintf("%q is neither an address nor a CIDR", Shorten(value))
	}

	return fmt.Sprintf("%q is not an address", Shorten(value))
}

// looksLikeAddress reports whether a value, valid or not, can only be meant as
// an address or a CIDR.
func looksLikeAddress(s string) bool {
	s = strings.Trim(s, " \t\n\v\f\r\"[]")
	return s != "" && (s[0] == ':' || '0' <= s[0] && s[0] <= '9' || strings.IndexByte(s, ':') > 0) &&
		strings.ContainsAny(s, ".:/") && strings.Trim(s, "0123456789abcdefABCDEF.:/") == ""
}

func declaredNames(declared map[string]*AttributeSpec) []string {
	return slices.Sorted(maps.Keys(declared))
}

package document

import (
	"cmp"
	"math/big"
	"slices"
	"strconv"
)

// Split divides amount among names in whole units. parts are a rule's
// `regions`, and amount is divided among all of them: a name that is not in
// parts gets 0, and nobody gets the part of a region that is not in names. If
// parts is empty or has none of the names, all names get equal parts.
//
// Each part is rounded down. The remaining units go, one each, to the parts
// that lost most by rounding; ties go to the first by name (Hamilton's method).
//
// The shares are in the order of names, which must be distinct. Their sum never
// exceeds amount; it equals amount if names has all regions in parts.
func Split(amount int64, names []string, parts []Region) []int64 {
	out := make([]int64, len(names))
	listed := func(name string) bool {
		return slices.ContainsFunc(parts, func(p Region) bool { return p.Name == name })
	}

	switch {
	case len(names) == 0:
	case !slices.ContainsFunc(names, listed):
		order := slices.Sorted(slices.Values(names))
		base, left := amount/int64(len(names)), amount%int64(len(names))
		for i, name := range names {
			out[i] = base
			if int64(slices.Index(order, name)) < left {
				out[i]++
			}
		}
	default:
		whole := splitParts(amount, parts)
		for i, name := range names {
			for j := range parts {
				if parts[j].Name == name {
					out[i] = whole[j]
				}
			}
		}
	}

	return out
}

// splitParts divides amount among parts, which need not add up to exactly 1.
func splitParts(amount int64, parts []Region) []int64 {
	out := make([]int64, len(parts))
	rest := make([]*big.Rat, len(parts)) // what rounding took off each share
	order := make([]int, len(parts))
	total := new(big.Rat)
	for _, p := range parts {
		total.Add(total, ExactRat(p.Part))
	}

	if total.Sign() <= 0 {
		return out // can't happen with parts from a document
	}

	left := amount
	for i, p := range parts {
		quota := ExactRat(p.Part)
		quota.Mul(quota, new(big.Rat).SetInt64(amount)).Quo(quota, total)
		floor := new(big.Int).Quo(quota.Num(), quota.Denom())
		out[i] = floor.Int64()
		order[i] = i
		rest[i] = quota.Sub(quota, new(big.Rat).SetInt(floor))
		left -= out[i]
	}

	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(rest[b].Cmp(rest[a]), cmp.Compare(parts[a].Name, parts[b].Name))
	})

	// Each part has lost less than one unit, so fewer are left than there are
	// parts.
	for _, i := range order[:left] {
		out[i]++
	}

	return out
}

// ExactRat returns a factor as it was written: 0.29 of 100 is 29, although no float64 equals 0.29.
func ExactRat(factor float64) *big.Rat {
	r, ok := new(big.Rat).SetString(strconv.FormatFloat(factor, 'g', -1, 64))
	if !ok {
		return big.NewRat(1, 1) // can't happen: documents have only finite numbers
	}
	return r
}

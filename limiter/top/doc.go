// Package top keeps the subjects with the most events of some kind, such as
// refusals, and those nearest to their limits, in bounded memory.
//
// A [List] counts events of one kind. It builds on the Space-Saving algorithm of
// Metwally, Agrawal and El Abbadi (ICDT 2005). A subject belongs to one of 16
// stripes, and each stripe keeps 256 subjects. If a stripe is full, a new
// subject replaces the one with the fewest events, and inherits its count. So a
// stripe always keeps a subject with more than 1/256 of the stripe's events.
//
// A [NearLimits] keeps up to 1,024 subjects that use the largest parts of their
// limits.
//
// With short keys, a full List takes 1.4 MB, and a full NearLimits 0.2 MB. A key
// is copied only when its subject enters a list ([KeySource]), into the memory
// of the key that it replaces. So a check allocates nothing once the lists are
// full.
//
// Each node of a cluster has its own lists, and sends them as a [Part]. [Merge]
// adds up what several nodes have counted, and [Rank] sorts the result.
package top

package limiter

import (
	"errors"
	"maps"
	"slices"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

// RegionUsage reports what one region has used of a subject's limits.
type RegionUsage struct {
	Name      string
	Reachable bool         // the region answered, or is this node's region
	Limits    []ShareUsage // nil if unknown
}

// askRegions adds to u each region's shares, and what it has used of them.
func (l *Limiter) askRegions(u *Usage) {
	active := l.active.Load()
	versions := active.set.DividingVersions()
	if versions == nil || len(u.Limits) == 0 || u.Rule.Scope != rules.GlobalScope {
		return
	}

	u.Shares = active.set.SharesOf(u.Rule, u.Limits[0].Limit)
	names := slices.Sorted(maps.Keys(u.Shares))
	u.Regions = make([]RegionUsage, len(names))

	var asked []int
	for i, name := range names {
		u.Regions[i].Name = name
		cp := l.cluster
		switch {
		case name == versions.Region:
			u.Regions[i].Reachable = true
			u.Regions[i].Limits = selectShares(u, ownShares(u))
		case cp != nil && cp.OtherRegions != nil && cp.OtherRegions.Reachable(name):
			asked = append(asked, i)
		}
	}

	message := wire.Encode(nil, &subjectRef{version: active.set.Version, Rule: u.Rule.Name, Key: u.Key})
	gather(gatherTimeout, asked, func(i int, done func([]byte, error)) {
		l.cluster.OtherRegions.Go(names[i], MethodShare, message, gatherTimeout, done)
	}, func(i int, reply []byte, err error) {
		var shares shareReply
		if err == nil {
			err = wire.Decode(reply, &shares, "shares")
		}

		// A region that answers with an error is reachable all the same.
		u.Regions[i].Reachable = err == nil || errors.As(err, new(*peer.RemoteError))
		u.Regions[i].Limits = selectShares(u, shares.limits)
	})
}

// ownShares returns this region's report on u's limits.
func ownShares(u *Usage) (list []ShareUsage) {
	for i := range u.Limits {
		lu := &u.Limits[i]
		list = append(list, ShareUsage{
			id: lu.Limit.ID, Share: lu.Limit.Capacity(),
			Used: lu.Used + lu.Leased + lu.Lent - lu.Borrowed, Leased: lu.Leased,
			Lent: lu.Lent, Borrowed: lu.Borrowed, Remaining: lu.Remaining,
		})
	}
	return list[:min(len(list), maxShares)]
}

// selectShares selects from a region's report the entries for u's limits, in
// u's order, and fills in Name and Own.
func selectShares(u *Usage, list []ShareUsage) (out []ShareUsage) {
	for i := range u.Limits {
		limit := u.Limits[i].Limit
		if at := slices.IndexFunc(list, func(share ShareUsage) bool { return share.id == limit.ID }); at >= 0 {
			share := list[at]
			share.Name = limit.Name
			share.Own = max(0, share.Used-share.Leased-share.Lent+share.Borrowed)
			out = append(out, share)
		}
	}
	return out
}

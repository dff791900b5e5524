// Package admin is the admin plane: an HTTP server where operators write rules
// and inspect a node. The dashboard uses it, too.
//
// One table lists its endpoints (admin.go). It reaches the rest of the node
// only through the fields of [Config] and api.Doors.
//
// # Files
//
// From the bottom up:
//
//   - causes.go, router.go, pages.go: errors that only this plane has, the
//     handler of a path, and protection from web pages of other sites;
//   - answers.go, connection.go: answers that are large or take work, and what
//     arrives on a connection;
//   - cluster.go, config.go: what the plane is given, and the cluster as it
//     shows it;
//   - params.go: which parameters and conditions a call may have;
//   - admin.go: the table of endpoints, and the server;
//   - dashboard.go, openapi.go, whoami.go: the dashboard's files, the
//     descriptions of both planes and of the rules file, and who the caller is;
//   - documents.go, diff.go, lists.go: the rules and their pieces are read and
//     written, compared, and listed page by page;
//   - monthly.go: bills;
//   - entries.go: bans, exemptions and other entries beside the rules;
//   - history.go, activity.go, events.go: what all nodes have decided by minute
//     and hour, and since they started, and what they logged;
//   - load.go, shares.go, subjects.go: the loads that rules follow, the
//     regions' shares of a limit, and what subjects have used;
//   - try.go, feedback.go: what a check would be answered, and refusals that
//     were wrong;
//   - membership.go: nodes and regions leave, and the feature level rises;
//   - metrics.go: the metrics of all packages, for Prometheus.
package admin

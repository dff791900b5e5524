// Command rlnode is a rate limiter: a node that answers checks over HTTP, and the tools to use it.
//
// This package has the flags and the commands, one or two per file; the node
// itself is in package node. [run] is the whole program except for what a
// process has only once.
//
// # Files
//
// From the top down:
//
//   - main.go, cli.go, completion.go, hints.go, version.go: the program, its
//     commands, and help with typing them;
//   - serve.go, greet.go, filemodes.go, files_unix.go, umask_unix.go: the command
//     that runs a node;
//   - settings.go, clusterports.go, config.go, size.go, memory.go: its flags and
//     its configuration file;
//   - check.go, try.go, subject.go, slots.go, feedback.go, usage.go: commands about
//     checks and what they have used;
//   - apply.go, rules.go, entries.go, tiers.go, load.go, backup.go, restore.go,
//     starter.go, import.go: rules, and what stands beside them;
//   - cluster.go, depart.go, level.go, recover.go, health.go, secret.go: nodes and
//     their cluster;
//   - replay.go: rules and a log; bench.go, benchload.go, benchfigures.go: load;
//   - target.go, planes.go, remote.go, tokens.go: what commands share to name a
//     subject and to reach a node;
//   - input.go, output.go, text.go, terminal.go, environment.go: what they share to
//     read and print.
package main

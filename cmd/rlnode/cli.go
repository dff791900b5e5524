package main

import (
	_ "embed"
	"strings"

	"github.com/alecthomas/kong"
)

const description = `A rate limiter: ask it whether something may happen now, and it answers.

  rlnode serve                                          run a node with the built-in starter rules
  rlnode check --rule per-ip --key 198.51.100.7         ask it for a decision
  rlnode check --limit 5/1m --key user-42               the same, with a limit that needs no rule
  rlnode replay --rules rules.yaml access.log           try rules on yesterday's log

rlnode --version prints the version, and rlnode completion bash a script for the shell.

Exit codes: 0 done, allowed or ready; 1 an error, a refusal (check), mistakes in the file (validate) or not ready
(health); 2 an invalid command line, or no decision (check); 3 a change of the rules needs permission (apply, rollback);
4 there is a change (diff, --dry-run).`

// cli is the command line.
type cli struct {
	Serve    serveCmd      `cmd:"" help:"Run a node."`
	Check    checkCmd      `cmd:"" help:"Ask a node for a decision."`
	Try      tryCmd        `cmd:"" help:"Show what a check would get, and why each rule applies to it or not."`
	Apply    applyCmd      `cmd:"" help:"Write rules files to a node, after it has shown what changes."`
	Diff     diffCmd       `cmd:"" help:"Show what a rules file would change, or what changed between two versions."`
	Rollback rollbackCmd   `cmd:"" help:"Put an earlier version of the rules in force again."`
	Versions versionsCmd   `cmd:"" help:"List the versions of the rules: who wrote them, when and why."`
	Validate validateCmd   `cmd:"" help:"Check a rules file without a node."`
	Schema   schemaCmd     `cmd:"" help:"Print a JSON Schema of the rules file, for editors."`
	Starter  starterCmd    `cmd:"" help:"Print a set of rules to begin with, or list the sets."`
	Import   importCmd     `cmd:"" help:"Make a rules file from another program's configuration."`
	Rules    rulesCmd      `cmd:"" help:"Print the rules in force, or their versions."`
	Members  membersCmd    `cmd:"" help:"List the nodes, their state and their part of the ring."`
	Owner    ownerCmd      `cmd:"" help:"Show which node owns a subject."`
	Top      topCmd        `cmd:"" help:"List the subjects that are refused most, use most, or are nearest to a limit."`
	Subject  subjectCmd    `cmd:"" help:"Show what a subject has used, its share and its block; set or unset its tier and limits."`
	Reset    resetCmd      `cmd:"" help:"Forget what a subject has used."`
	Adjust   adjustCmd     `cmd:"" help:"Add to what a subject has used: a penalty or a reward."`
	Slots    slotsCmd      `cmd:"" help:"List who holds the slots of a subject, or free one."`
	Feedback feedbackCmd   `cmd:"" help:"Report that a refusal was wrong."`
	Deny     denyCmd       `cmd:"" help:"Add an entry to the deny list, remove one, or list them."`
	Allow    allowCmd      `cmd:"" help:"Add an entry to the allow list, remove one, or list them."`
	Block    blockCmd      `cmd:"" help:"Make a rule refuse a subject for a time."`
	Unblock  unblockCmd    `cmd:"" help:"Lift a subject's blocks."`
	Entries  entriesCmd    `cmd:"" help:"List what stands beside the rules document, or its changes."`
	Tiers    tiersCmd      `cmd:"" help:"List the tiers in the rules."`
	Load     loadCmd       `cmd:"" help:"Report a load that adaptive rules follow, or list the loads."`
	Usage    usageCmd      `cmd:"" help:"Print how much each subject was admitted in a month, for bills."`
	Leave    leaveCmd      `cmd:"" help:"Take a node out of its cluster; it hands its counters over first."`
	Remove   removeCmd     `cmd:"" help:"Take a dead node out of the cluster, by its name, or a dead region."`
	Level    levelCmd      `cmd:"" help:"Show the feature level and which node knows which, or raise it."`
	Recover  recoverCmd    `cmd:"" help:"Recover a cluster from one surviving node when the majority of its voters is lost for good."`
	Secret   secretCmd     `cmd:"" help:"Print a new secret for the nodes of a cluster."`
	Health   healthCmd     `cmd:"" help:"Report whether a node is ready, for health checks of containers."`
	Token    tokenCmd      `cmd:"" help:"Make a token with scopes, and its line for the tokens file."`
	Backup   backupCmd     `cmd:"" help:"Save the rules in force, and the entries beside them, to a file."`
	Restore  restoreCmd    `cmd:"" help:"Put the rules and entries of a backup in force again."`
	Replay   replayCmd     `cmd:"" help:"Show what rules would have done to the requests in a log."`
	Bench    benchCmd      `cmd:"" help:"Put load on a node and print rate and latency."`
	Complete completionCmd `cmd:"" name:"completion" help:"Print a script that completes commands in a shell."`
	Version  versionCmd    `cmd:"" help:"Print the version."`
	HelpCmd  helpCmd       `cmd:"" name:"help" help:"Print help about a command."`
}

// helpCmd exists only for the list of commands: run turns "help x" into "x --help".
type helpCmd struct {
	Command string `arg:"" optional:"" help:"The command."`
}

// Run does nothing; it is never called.
func (helpCmd) Run(*environment) error { return nil }

// helpTexts is what --help prints about each command. A section begins with "==
// " and the commands that it is about, and LIST in it stands for the first word
// of the command.
//
//go:embed help.txt
var helpTexts string

// splitHelp returns the help texts by command.
func splitHelp() map[string]string {
	texts := map[string]string{}
	for section := range strings.SplitSeq("\n"+helpTexts, "\n== ") {
		commands, text, _ := strings.Cut(strings.TrimSpace(section), "\n\n")
		for command := range strings.SplitSeq(commands, ", ") {
			first, _, _ := strings.Cut(command, " ")
			texts[command] = strings.ReplaceAll(text, "LIST", first)
		}
	}
	return texts
}

// addHelp gives the commands below a node their help texts. prefix is what is
// typed before their names.
func addHelp(node *kong.Node, prefix string, texts map[string]string) {
	for _, command := range node.Children {
		typed := prefix + command.Name
		command.Detail = texts[typed]
		addHelp(command, typed+" ", texts)
	}
}

// Package rules holds the rules of the tree that no compiler checks: which
// package may know which, where unsafe and system calls may stand, that each
// SYNC comment has its other end, that each step of the models has its line of
// code, that one version number stands everywhere, that words which were given up do not
// come back.
//
// Its tests apply every rule in [All] to the project's own files and feed every
// rule samples that break it. Nothing else of the project imports this package;
// the command modeldoc below it writes the table of docs/models.md.
//
// A rule reads a [Tree], a snapshot of the text files in memory: it changes
// nothing, owns nothing that must be freed, and may run beside others. It reads
// the project's own sources only, so there is no hostile peer and no death to
// survive; a Go file that does not parse is an error of [Load].
package rules

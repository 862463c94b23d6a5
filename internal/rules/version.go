package rules

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

var (
	semver      = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	tomlSection = regexp.MustCompile(`^\s*\[+([^\]]+)\]+`)
	tomlVersion = regexp.MustCompile(`^\s*version\s*=\s*"([^"]*)"`)
	// pathVersion finds the version that a crate of ours asks of another one here.
	pathVersion = regexp.MustCompile(`\{[^}]*\bpath\s*=[^}]*\bversion\s*=\s*"([^"]*)"|\{[^}]*\bversion\s*=\s*"([^"]*)"[^}]*\bpath\s*=`)
)

// versionSections are the tables whose version is the project's own.
var versionSections = map[string][]string{
	"Cargo.toml":     {"package", "workspace.package"},
	"pyproject.toml": {"project"},
}

// CheckVersion fails when VERSION is not one version number, or when a crate or
// a Python project of the tree states another one.
func CheckVersion(t *Tree) []Violation {
	file := t.File("VERSION")
	if file == nil {
		return []Violation{{"VERSION", 0, "is missing: it holds the one version number of the project"}}
	}
	version := strings.TrimSuffix(file.Text, "\n")
	if !semver.MatchString(version) {
		return []Violation{{"VERSION", 1, fmt.Sprintf("%q is not a version such as 1.2.3", version)}}
	}
	var out []Violation
	for _, f := range t.Files {
		sections, manifest := versionSections[path.Base(f.Name)]
		if !manifest {
			continue
		}
		section := ""
		for i, line := range strings.Split(f.Text, "\n") {
			if m := tomlSection.FindStringSubmatch(line); m != nil {
				section = strings.TrimSpace(m[1])
				continue
			}
			stated := ""
			for _, own := range sections {
				if m := tomlVersion.FindStringSubmatch(line); m != nil && section == own {
					stated = m[1]
				}
			}
			if m := pathVersion.FindStringSubmatch(line); m != nil {
				stated = strings.TrimLeft(m[1]+m[2], "=^~ ")
			}
			if stated != "" && stated != version {
				out = append(out, Violation{f.Name, i + 1, fmt.Sprintf("version %s, but VERSION says %s", stated, version)})
			}
		}
	}
	return out
}

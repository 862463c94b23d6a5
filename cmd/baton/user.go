package main

import (
	"fmt"

	"github.com/baton-ipc/baton/cmd/baton/internal/top"
)

// userText names a user: "root (uid 0)", "uid 4242" where this machine has no name for it.
func userText(uid uint32) string {
	if name := top.UserName(uid); name != "" {
		return fmt.Sprintf("%s (uid %d)", name, uid)
	}
	return fmt.Sprintf("uid %d", uid)
}

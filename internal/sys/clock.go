package sys

import (
	"os"
	"strings"
)

// BootID identifies this run of the machine.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

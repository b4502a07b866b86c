package sftpd

import "fmt"

// refusal is an error in words for the person at the other end.
type refusal string

func (r refusal) Error() string { return string(r) }

func tooMany(format string, n int) error { return refusal(fmt.Sprintf(format, n)) }

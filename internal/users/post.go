package users

import (
	"context"
	"database/sql"
)

// Post writes to people. What it is told belongs to a transaction: the mail is on its way if and only if that comes
// about. A refusal it returns is a sentence for people, and refuses the whole.
type Post interface {
	// Invited sends an invitation with the link that its token makes.
	Invited(ctx context.Context, tx *sql.Tx, by User, invitation Invitation, token string, to []string) error
	// Approved tells somebody that they have the account that they asked for.
	Approved(ctx context.Context, tx *sql.Tx, u User) error
}

// UsePost sets who writes to people, before anything else is asked.
func (s *Service) UsePost(p Post) { s.post = p }

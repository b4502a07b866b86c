// Package mail writes to people: invitations, and what they want to know of while no page is open before them.
//
// # The outbox
//
// A mail is a row in gpulab.db from the moment that it is decided on, in the same transaction as what it tells of. Run
// hands it to the configured server and then marks it, so that nothing is lost when gpulab is killed at any moment; who
// is killed between the two sends it again, with the Message-ID of before, by which mail programs know it. Refusals for
// now are tried again with growing pauses, those for good are not. After days it is given up, with a line for
// administrators.
//
// # Notices
//
// What people are told of are conditions that hold: a notebook is about to be stopped, a machine is silent. Sources say
// which hold now, and Look writes to those who want to know and have not been told. A condition that is missed while
// gpulab is not running is found afterwards. Many at once become one mail, and so do those that come faster than
// somebody gets mails of one kind.
//
// Sources are functions that cmd/gpulab makes of what the parts of the lab know; none of these parts knows of mail.
//
// Only cmd/gpulab, internal/api, internal/ctl and internal/webui may import mail, all but the first for its types only.
package mail

package users

import "slices"

// AuditAction is something that the audit log records, with words for people.
type AuditAction struct{ Name, Words string }

// auditActions is every action there is, in the order of the docs. Whoever records another one adds it here.
var auditActions = []AuditAction{
	{"sign-in", "signed in"},
	{"sign-in.failed", "saw a failed sign-in"},
	{"sign-in.failed-often", "saw many failed sign-ins"},
	{"sign-in.locked", "locked a sign-in after many wrong passwords"},
	{"sign-out", "signed out"},
	{"session.end", "signed another browser out"},
	{"session.end-others", "signed all other browsers out"},
	{"password.chosen", "chose a password with a link"},
	{"password.changed", "changed the password"},
	{"token.create", "made an access token"},
	{"token.revoke", "revoked access tokens"},
	{"device.confirm", "confirmed that a program gets an access token"},
	{"device.deny", "denied a program an access token"},
	{"ssh-key.add", "added an SSH key"},
	{"ssh-key.remove", "removed an SSH key"},
	{"files.close", "closed connections for files"},
	{"account.change", "changed name or e-mail"},
	{"identity.join", "came in with an outside account"},
	{"identity.link", "linked an outside account"},
	{"identity.unlink", "unlinked an outside account"},
	{"admin.link", "made the link for the first administrator"},
	{"admin.created", "became the first administrator"},
	{"sign-up.ask", "took a request for an account"},
	{"sign-up.approve", "approved a request for an account"},
	{"sign-up.decline", "declined a request for an account"},
	{"invitation.add", "made an invitation"},
	{"invitation.revoke", "revoked an invitation"},
	{"invitation.join", "joined with an invitation"},
	{"user.import", "imported people"},
	{"user.add", "added a person"},
	{"user.password-link", "made a password link"},
	{"user.change", "changed a person's name or e-mail"},
	{"user.role", "changed a person's role"},
	{"user.role-by-rules", "left a person's role to the rules of their outside account"},
	{"user.suspend", "suspended a person"},
	{"user.resume", "ended a suspension"},
	{"user.remove", "removed a person"},
	{"user.undelete", "brought a removed person back"},
	{"user.purge", "deleted a removed person for good"},
	{"group.add", "made a group"},
	{"group.remove", "removed a group"},
	{"group.member", "added somebody to a group, or changed who leads it"},
	{"group.member-remove", "took somebody out of a group"},
	{"job.submit", "submitted a job"},
	{"job.cancel", "cancelled a job"},
	{"notebook.launch", "launched a notebook"},
	{"notebook.stop", "stopped a notebook"},
	{"notebook.cancel", "cancelled a waiting notebook"},
	{"quota.set", "set a quota"},
	{"quota.unset", "ended a quota"},
	{"quota.grant", "granted more for a while"},
	{"quota.end-grant", "ended a grant"},
	{"quota.stop", "stopped what runs beyond a quota"},
	{"idle.warn", "warned somebody whose GPU nobody used, or whose notebook had run for as long as one may"},
	{"idle.withdraw", "took such a warning back: it was in use again, or nobody waited any more"},
	{"idle.extend", "kept a notebook after such a warning"},
	{"idle.stop", "stopped a notebook after such a warning"},
	{"idle.free", "freed a GPU that nobody used"},
	{"folder.add", "made a shared folder"},
	{"folder.change", "changed who may use a shared folder"},
	{"folder.delete", "deleted a shared folder"},
	{"folder.undelete", "brought a shared folder back"},
	{"folder.purge", "deleted the files of a shared folder for good"},
	{"folder.stop", "stopped a notebook whose owner lost a shared folder"},
	{"home.clear", "deleted something in the own home"},
	{"image.pull", "fetched an image"},
	{"image.import", "imported an image"},
	{"image.remove", "removed an image"},
	{"environment.create", "built an environment"},
	{"environment.import", "brought in an environment from a file"},
	{"environment.default", "chose the environment that notebooks begin with"},
	{"environment.remove", "removed an environment"},
	{"gpu.check", "tested a GPU"},
	{"gpu.lend-anyway", "lends a GPU out whoever uses it"},
	{"gpu.lend-when-free", "lends a GPU out while it is free"},
	{"node.invite", "made a code with which a machine can join"},
	{"node.accept", "let a machine in that asked without a code"},
	{"node.decline", "did not let a machine in that asked without a code"},
	{"node.withdraw", "withdrew a code with which a machine could join"},
	{"node.join", "let a machine into the pool"},
	{"node.refused", "did not let a machine in, or did not believe it"},
	{"node.leave", "saw a machine leave the pool"},
	{"node.remove", "removed a machine from the pool"},
	{"node.cordon", "let a machine take no new work"},
	{"node.uncordon", "let a machine take work again"},
	{"node.drain", "began to empty a machine"},
	{"node.keep", "let the notebooks of a machine stay that was being emptied"},
	{"node.rename", "changed what a machine is shown as"},
	{"node.limit", "changed whom a machine is for"},
	{"node.placing", "changed how machines are chosen for notebooks"},
	{"node.stop", "stopped a notebook on a machine that was emptied"},
	{"gpulab.upgrade", "began to use another version of gpulab"},
	{"gpulab.rollback", "went back to another version of gpulab, or forth again"},
	{"audit.export", "exported the audit log"},
	{"backup.create", "made a backup of the lab"},
	{"backup.restore", "restored the lab from a backup"},
}

// AuditActions lists every action of the audit log.
func AuditActions() []AuditAction { return slices.Clone(auditActions) }

// AuditWords says what an action is; one that an older gpulab recorded is its own name.
func AuditWords(name string) string {
	for _, a := range auditActions {
		if a.Name == name {
			return a.Words
		}
	}
	return name
}

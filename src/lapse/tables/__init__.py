"""Tables of a user's own: files, what each column is, and what is wrong with the data."""

from lapse.tables.files import read_table as read_table
from lapse.tables.findings import Finding as Finding
from lapse.tables.findings import examine as examine
from lapse.tables.roles import Roles as Roles
from lapse.tables.roles import RolesError as RolesError
from lapse.tables.roles import guess as guess

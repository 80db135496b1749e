"""The error catalogue: every way in which a user's input, or an artefact, can be refused.

One class per kind of error, found by a stable code. An error says four things, always: the *code*, the *place* (a file
and line, a key, an argument), the *cause* with the offending value in it, and the *fix*. ``str(error)`` reads

    error MW1002 at model.py: the file defines no 'build'
      fix: name one of its functions: 'model', 'tiny'

A family takes a range of numbers, in the order of the data path, gives its members their exit code, and has a module:

    MW1  model       loading and tracing a model         MW6  cluster      clusters
    MW2  config      configuration files                 MW7  search       the search
    MW3  ir          the IR                              MW8  usage        the command line
    MW4  program     decisions and programs              MW9  environment  the environment, and ourselves
    MW5  capability  capabilities

To add an error: subclass its family in the family's module, in the order of the codes, take the next free code, say in
the docstring what is refused and why, run ``python -m meshwright.ir.errors > docs/errors.md``, and test the place that
raises it:

    raise FactoryMissing(place=path, cause=f"the file defines no {name!r}", fix=f"name one of its functions: {names}")

A class enters the catalogue by being defined; a code that is malformed, outside its family or taken is refused right
there (`base`). Everything is imported from here, by name: which module a class stands in is nobody else's business.
Here the families are taken in whole, so that no second list of their classes has to be kept. Nothing heavy is imported:
``plan --help`` passes through here.
"""

from meshwright.ir.errors.base import MeshwrightError, catalogue, closest, instead, nearest, within
from meshwright.ir.errors.capability import *
from meshwright.ir.errors.cluster import *
from meshwright.ir.errors.config import *
from meshwright.ir.errors.environment import *
from meshwright.ir.errors.ir import *
from meshwright.ir.errors.model import *
from meshwright.ir.errors.page import Page, pages, render
from meshwright.ir.errors.program import *
from meshwright.ir.errors.search import *
from meshwright.ir.errors.usage import *

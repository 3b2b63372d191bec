"""emp, the Extensible Messaging Protocol: data, requests and responses between two equal peers."""

from wireloom.protocols.emp.protocol import EMP, Emp
from wireloom.protocols.emp.settings import EmpSettings

__all__ = ["EMP", "Emp", "EmpSettings"]
